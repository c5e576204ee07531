package cni

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// A PolicyRequest is what the plugin asks the agent where NetworkPolicies are on, one a
// connection, as JSON.
type PolicyRequest struct {
	// Command is PolicyAdd, which is answered when the pod is isolated as far as policies
	// want it, or PolicyDel: the container is gone.
	Command   string       `json:"command"`
	Pod       string       `json:"pod,omitempty"` // namespace/name
	UID       string       `json:"uid,omitempty"`
	Container string       `json:"container"`
	Addrs     []netip.Addr `json:"addrs,omitempty"`
}

// The commands.
const (
	PolicyAdd = "add"
	PolicyDel = "del"
)

// A PolicyAnswer is the agent's. An empty Error means that it is done.
type PolicyAnswer struct {
	Error string `json:"error,omitempty"`
}

// PolicyPatience is how long the agent may take.
const PolicyPatience = 20 * time.Second

// isolate asks the agent to isolate the pod before it has a link.
func isolate(conf *netConf, a attachment, args string, addrs []netip.Addr) error {
	if conf.PolicySocket == "" {
		return nil
	}
	r := PolicyRequest{Command: PolicyAdd, Pod: podName(args), UID: argument(args, "K8S_POD_UID"), Container: a.containerID, Addrs: addrs}
	if err := askPolicy(conf.PolicySocket, r); err != nil {
		return failf(types.ErrTryAgainLater, "isolate the pod as NetworkPolicies want it: %v (the pod would start unprotected; is the fairway agent running on this node?)", err)
	}
	return nil
}

// forget tells the agent that a container is gone. An agent that is not there keeps its
// address closed until another pod gets it.
func forget(conf *netConf, containerID string) error {
	if conf.PolicySocket == "" {
		return nil
	}
	return askPolicy(conf.PolicySocket, PolicyRequest{Command: PolicyDel, Container: containerID})
}

// forgetful returns forget for many containers: once each, and no more after the agent has failed,
// for it may take long to do so.
func forgetful(conf *netConf) func(containerID string) {
	told, fails := map[string]bool{}, false
	return func(id string) {
		if !told[id] && !fails {
			told[id], fails = true, forget(conf, id) != nil
		}
	}
}

func askPolicy(socket string, r PolicyRequest) error {
	c, err := net.DialTimeout("unix", socket, PolicyPatience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(PolicyPatience)); err != nil {
		return err
	}
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	var answer PolicyAnswer
	if err := json.NewDecoder(c).Decode(&answer); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if answer.Error != "" {
		return fmt.Errorf("the agent says: %s", answer.Error)
	}
	return nil
}

// argument returns one of CNI_ARGS.
func argument(args, key string) string {
	for pair := range strings.SplitSeq(args, ";") {
		if k, v, _ := strings.Cut(pair, "="); k == key {
			return v
		}
	}
	return ""
}
