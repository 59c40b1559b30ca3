"""refold beside other engines that keep an agent's steps: the same work on each, in turn, in one run."""
