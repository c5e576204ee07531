package datapath

import "strings"

// The modes that carry Services, by their names in --proxy-mode. Package modes opens them.
const (
	NFTables  = "nftables"
	IPTables  = "iptables"
	IPVS      = "ipvs"
	Userspace = "userspace"
)

// Two further values of --proxy-mode: Auto takes the best mode that works here, None
// carries no Services.
const (
	Auto = "auto"
	None = "none"
)

// Modes returns the names of the modes that carry Services, the best first.
func Modes() []string { return []string{NFTables, IPTables, IPVS, Userspace} }

// ModeNames returns the names for messages: "nftables, iptables, …".
func ModeNames() string { return strings.Join(Modes(), ", ") }
