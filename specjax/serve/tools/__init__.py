"""Calls of tools: how families of models write them, how they are enforced, and how they are read.

``formats`` has a record of each way to write calls, ``choice`` has the fields of requests and
enforces the calls by a grammar, and ``reader`` reads them while the text arrives.
"""
