// Package isolate is how a node's CNI plugin tells the agent about a pod's NetworkPolicies.
//
//	CNI plugin ── Ask(Request) ──→ unix socket ──→ agent (networkpolicy/enforcer)
//	           ←───── Answer ─────
//
// A connection carries one Request and one Answer, each a line of JSON. The plugin sends Add before the pod has a link,
// and the agent answers once it has isolated the pod, so no pod starts unprotected. Neither side waits longer than
// Patience.
package isolate

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// A Request is the plugin's message. Container is required; Add needs Addrs as well.
type Request struct {
	Command   string       `json:"command"`       // Add or Delete
	Pod       string       `json:"pod,omitempty"` // namespace/name
	UID       string       `json:"uid,omitempty"`
	Container string       `json:"container"`
	Addrs     []netip.Addr `json:"addrs,omitempty"`
}

// The commands of a Request.
const (
	Add    = "add"
	Delete = "del"
)

// An Answer is the agent's message. An empty Error means success.
type Answer struct {
	Error string `json:"error,omitempty"`
}

// Patience limits each step of an exchange: connecting, asking and answering.
const Patience = 20 * time.Second

// Ask sends a request to the agent's socket and waits for the answer, at most Patience.
func Ask(socket string, r Request) error {
	c, err := net.DialTimeout("unix", socket, Patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	var answer Answer
	if err := json.NewDecoder(c).Decode(&answer); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if answer.Error != "" {
		return fmt.Errorf("the agent says: %s", answer.Error)
	}
	return nil
}
