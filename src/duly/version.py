"""The version of duly, for modules that may not import the package itself."""

__version__ = "0.1.0"
