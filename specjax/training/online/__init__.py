"""Heads that train while their target decodes."""
