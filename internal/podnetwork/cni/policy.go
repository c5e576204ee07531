package cni

import (
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/fairway-net/fairway/internal/ipc/isolate"
)

// isolatePod asks the agent to isolate the pod before it has a link.
func isolatePod(conf *netConf, a attachment, args string, addrs []netip.Addr) error {
	if conf.PolicySocket == "" {
		return nil
	}
	r := isolate.Request{Command: isolate.Add, Pod: podName(args), UID: argument(args, "K8S_POD_UID"), Container: a.containerID, Addrs: addrs}
	if err := isolate.Ask(conf.PolicySocket, r); err != nil {
		return failf(types.ErrTryAgainLater, "isolate the pod as NetworkPolicies want it: %v (the pod would start unprotected; is the fairway agent running on this node?)", err)
	}
	return nil
}

// forget tells the agent that a container is gone. If no agent answers, the address stays closed until another pod gets
// it.
func forget(conf *netConf, containerID string) error {
	if conf.PolicySocket == "" {
		return nil
	}
	return isolate.Ask(conf.PolicySocket, isolate.Request{Command: isolate.Delete, Container: containerID})
}

// forgetful returns forget for many containers. It calls the agent once for each, and no more after the agent has
// failed, because each failure may take long.
func forgetful(conf *netConf) func(containerID string) {
	told, fails := map[string]bool{}, false
	return func(id string) {
		if !told[id] && !fails {
			told[id], fails = true, forget(conf, id) != nil
		}
	}
}

// argument returns an argument of CNI_ARGS.
func argument(args, key string) string {
	for pair := range strings.SplitSeq(args, ";") {
		if k, v, _ := strings.Cut(pair, "="); k == key {
			return v
		}
	}
	return ""
}
