"""Figures and tables of the papers, measured beside what was published."""
