from a2a.torch import *
