"""Generated tasks in which the depth that each token or sequence needs is known. Every epoch has new examples."""
