// Package versions tries the agent, the tools and DNS against API servers of three minor versions,
// of which the newest is the one that they are built with.
//
//	etcd ◀─ kube-apiserver of v1.NN ◀─ fairway agent, dump, explain, dns, install
//
// It has no code. Its test needs the tag versions, because building an API server takes minutes:
// make test-versions builds each from its module below v1.NN, and runs the test with it.
package versions
