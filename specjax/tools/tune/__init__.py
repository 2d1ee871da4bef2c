"""Measures which options of a method draft best on this device."""
