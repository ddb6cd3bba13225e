from a2a import *
from a2a import __all__ as __all__
from a2a import __version__ as __version__
