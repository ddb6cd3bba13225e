from a2a.jax import *
