// Pause is the first process of every pod: it holds the pod's namespaces open and does nothing else.
//
// It promises to end at once on SIGTERM and SIGINT, and, where a pod's containers share their process namespace and
// it is process 1, to collect children that no process waits for. It is its own program, without net/http, because one
// runs in each pod.
//
//	kubelet ─► containerd ─► pause (network namespace, addresses) ◄─ shared by ─ the pod's containers
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	for s := range signals {
		if s != syscall.SIGCHLD {
			os.Exit(0)
		}
		reap()
	}
}

// reap collects every child that has ended: one SIGCHLD may stand for several.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
	}
}
