from a2a.frameworks import *
