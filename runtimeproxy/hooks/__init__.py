"""Hook servers: which there are, what they are asked, and what of their answers is accepted."""
