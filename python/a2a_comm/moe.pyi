from a2a.moe import *
