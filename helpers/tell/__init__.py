"""Figures, panels and pages: what people look at."""
