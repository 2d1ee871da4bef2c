"""Predicts memory, traffic and time of a method on devices that are not at hand."""
