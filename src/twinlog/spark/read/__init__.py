"""Where rows come from: files of a replica, or brokers over the network."""
