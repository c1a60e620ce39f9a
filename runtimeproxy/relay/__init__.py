"""Calls between the clients of our socket and the runtime behind it."""
