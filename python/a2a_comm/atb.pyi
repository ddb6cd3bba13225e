from a2a.atb import *
