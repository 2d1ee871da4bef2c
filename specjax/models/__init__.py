"""The maths of language models. No module here knows a file format.

``base`` has the protocol of a model, ``decoder`` the transformer. ``config`` describes a model, and
``kinds`` its layers: each has a mixer (``mixers``) and a feed-forward (``feed_forwards``).
"""
