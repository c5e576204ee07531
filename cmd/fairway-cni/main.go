// Command fairway-cni is the CNI plugin of Fairway as a program of its own: a container
// runtime starts it as root for each pod, so it holds nothing but the plugin.
//
//	image: /usr/bin/fairway-cni ─ the agent copies it ─→ node: /opt/cni/bin/fairway-cni
//	                                                           /opt/cni/bin/loopback, a link to it
//
// It promises that it starts in milliseconds, that it opens no connection, and that it has
// no code of Kubernetes, CoreDNS or an HTTP server in it (a test counts its modules).
package main

import (
	"os"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
)

// version is set by the Makefile with -ldflags -X; a plain `go build` says so.
var version = "v0.1.0-dev"

func main() { os.Exit(cni.Main(os.Args[0], version)) }
