"""Files of models: configurations, tensors, and the formats in which others publish them.

``load`` reads a model by its name. ``families`` has the language models, ``layouts`` the trained
heads.
"""
