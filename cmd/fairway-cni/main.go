// Command fairway-cni is Fairway's CNI plugin as a program of its own. A container runtime starts it as root for each
// pod, so it contains only the plugin.
//
//	image: /usr/bin/fairway-cni ─ the agent copies it ─→ node: /opt/cni/bin/fairway-cni
//	                                                           /opt/cni/bin/loopback, a link to it
//
// It starts in milliseconds, opens no connection, and contains no code of Kubernetes, CoreDNS or an HTTP server (a test
// counts its modules).
package main

import (
	"os"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
)

// version is set by the Makefile with -ldflags -X. A plain `go build` keeps this value.
var version = "v0.1.0-dev"

func main() { os.Exit(cni.Main(os.Args[0], version)) }
