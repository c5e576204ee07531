// Pause is the first process of every pod. It keeps the pod's namespaces open.
//
// It ends at once on SIGTERM and SIGINT. If a pod's containers share their PID namespace, pause is process 1 and reaps
// orphans. It is a separate program without net/http, because every pod runs it.
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

// reap reaps every child that has ended, because one SIGCHLD may stand for several children.
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
