"""Searches the shapes of draft models."""
