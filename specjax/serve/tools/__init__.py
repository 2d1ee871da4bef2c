"""Calls of tools: how families of models write them, how they are enforced, and how they are read.

``formats`` has a record of each way to write calls, ``grammar`` enforces it, ``reader`` reads it
while the text arrives, and ``choice`` has the fields of requests.
"""
