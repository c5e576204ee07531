package datapath

import "strings"

// The modes that carry Services, by their names in --proxy-mode. Package modes opens them.
const (
	NFTables  = "nftables"
	IPTables  = "iptables"
	IPVS      = "ipvs"
	Userspace = "userspace"
	EBPF      = "ebpf"
)

// Two more values of --proxy-mode. Auto takes the best mode that works here, None carries no Services.
const (
	Auto = "auto"
	None = "none"
)

// Modes returns the names of the modes that carry Services, the best first.
func Modes() []string { return []string{NFTables, IPTables, IPVS, Userspace, EBPF} }

// OldestKernel returns the oldest Linux for a mode, as major and minor number; 0.0: every kernel that Kubernetes supports.
func OldestKernel(mode string) [2]int {
	switch mode {
	case NFTables, Userspace, EBPF:
		return [2]int{5, 13}
	}
	return [2]int{}
}

// ModeNames returns the names for messages: "nftables, iptables, …".
func ModeNames() string { return strings.Join(Modes(), ", ") }
