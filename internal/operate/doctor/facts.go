package doctor

import (
	"net/netip"
	"time"
)

// Facts are the known facts of a node. The zero value of a part means that it is unknown.
type Facts struct {
	Node   string
	Root   bool   // the process may read everything
	Kernel string // "6.1.0-30-amd64"
	// Mode and PodNetwork are the configured --proxy-mode and --pod-network. PodNetwork is empty if another program
	// provides the pod network.
	Mode       string
	PodNetwork string
	Modes      []ModeFact
	Ways       []ModeFact // ways of the pod network that need support of the kernel
	Programs   []ProgramFact
	Sysctls    map[string]string // by name with dots; a missing name does not exist
	Conntrack  ConntrackFacts
	CgroupV1   bool
	CgroupV2   bool
	Ports      []PortFact
	Others     OthersFacts
	API        APIFacts
	Links      []Link
	Uplink     string // the interface of the default route
	// AgentRuns reports whether a fairway agent runs in this network namespace.
	AgentRuns bool
}

// A ModeFact is the result of a mode's probe. The probe asks the kernel, and compares no version.
type ModeFact struct {
	Name string
	Err  string // empty: the mode works
}

// A ProgramFact describes a program that modes start.
type ProgramFact struct {
	Name    string
	Version string // its own version text; empty: not installed
	Rules   int    // number of rules, of iptables' variants
}

// ConntrackFacts describe the conntrack table.
type ConntrackFacts struct {
	Known      bool
	Max, Count int
}

// A PortFact describes a port that the agent needs.
type PortFact struct {
	Port   uint16
	What   string
	Holder string // the process that has the port; empty: it is free
	Agent  bool   // the holder is a fairway agent
}

// OthersFacts describe other programs' rules in the kernel.
type OthersFacts struct {
	Err     string // why the rules could not be read
	Proxies []string
	// Configs are CNI configurations that the container runtime prefers to Fairway's.
	Configs []string
	Drops   []string // other programs' base chains at forward or input that drop by their policy or last rule
}

// APIFacts are the result of an attempt to reach the API server.
type APIFacts struct {
	Skipped string // why there was no attempt
	Server  string // its URL
	Err     string // why the server was not reached
	Version string
	Took    time.Duration
	// ClusterIP reports whether the server's address is a Service's, which needs a service proxy.
	ClusterIP bool
	Addr      netip.Addr
	// Skew is how far the node's clock is ahead of the API server's, with a resolution of a second.
	Skew      time.Duration
	SkewKnown bool
	Forbidden []string // lists that an agent needs and these credentials may not read
	Own       bool     // the credentials are the agent's
	NodeKnown bool     // the API server has a Node with this name
	// NetworkUnavailable is the message of the Node's condition of this name if it is true.
	NetworkUnavailable string
	KubeProxies        int // pods of the DaemonSet kube-proxy; 0: none is known
}

// A Link is a network interface.
type Link struct {
	Name string
	MTU  int
	Pods bool // pods are behind it: a veth, a bridge or a tunnel
	// Overhead is the number of bytes that a tunnel adds to each packet.
	Overhead int
}
