package doctor

import (
	"net/netip"
	"time"
)

// Facts are what is known of a node. A zero value of a part means that nothing is known of it.
type Facts struct {
	Node   string
	Root   bool   // the process may look at everything
	Kernel string // "6.1.0-30-amd64"
	// Mode and PodNetwork are --proxy-mode and --pod-network as they are, or would be, configured;
	// PodNetwork is empty where another program connects the pods.
	Mode       string
	PodNetwork string
	Modes      []ModeFact
	Ways       []ModeFact // of the pod network, that need something of the kernel
	Programs   []ProgramFact
	Sysctls    map[string]string // by name with dots; a missing one does not exist
	Conntrack  ConntrackFacts
	CgroupV1   bool
	CgroupV2   bool
	Ports      []PortFact
	Others     OthersFacts
	API        APIFacts
	Links      []Link
	Uplink     string // the link of the default route
	// AgentRuns says that a fairway agent runs in this network namespace.
	AgentRuns bool
}

// A ModeFact is what a mode's probe said: the kernel was asked, not its version compared.
type ModeFact struct {
	Name string
	Err  string // empty: it works
}

// A ProgramFact is a program that modes start.
type ProgramFact struct {
	Name    string
	Version string // as it says; empty: it is not there
	Rules   int    // rules that it has here, of iptables' variants
}

// ConntrackFacts are the connection table's.
type ConntrackFacts struct {
	Known      bool
	Max, Count int
}

// A PortFact is a port that the agent needs.
type PortFact struct {
	Port   uint16
	What   string
	Holder string // the process that has it; empty: it is free
	Agent  bool   // it is a fairway agent's
}

// OthersFacts are what other programs have in the kernel.
type OthersFacts struct {
	Err     string // why it could not be read
	Proxies []string
	Drops   []string // chains of other programs at forward or input whose policy is drop
}

// APIFacts are what an attempt to reach the API server showed.
type APIFacts struct {
	Skipped string // why there was no attempt
	Server  string // its URL
	Err     string // why it was not reached
	Version string
	Took    time.Duration
	// ClusterIP says that its address is a Service's, which needs a service proxy.
	ClusterIP bool
	Addr      netip.Addr
	// Skew is how far the node's clock is ahead of the API server's; the header has seconds.
	Skew      time.Duration
	SkewKnown bool
	Forbidden []string // lists that an agent needs and may not read with these credentials
	Own       bool     // they are the agent's
	NodeKnown bool     // the API server has a Node of this name
}

// A Link is a network interface.
type Link struct {
	Name string
	MTU  int
	Pods bool // pods are behind it: a veth, a bridge or a tunnel
	// Overhead is what a tunnel adds to each packet.
	Overhead int
}
