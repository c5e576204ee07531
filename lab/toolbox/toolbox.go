// Package toolbox is what a person finds who looks around in the lab, in the toolbox images and on the nodes: programs
// of this machine, and scripts before them in PATH where the lab is not what the program expects.
//
//	tools ── programs of this machine ──┐
//	bin/apt        nothing can be fetched ├──► images busybox, curl, dnsutils, ubuntu: /usr/local/sbin, /usr/bin
//	bin/iptables   another mode's chains ─┴──► nodes: Bin, first in PATH of `fairway-lab node` and `shell`
//	bin/fairway    the agent's own ──────────► nodes
//
// It hides which script stands where. It promises that no script changes anything: a script says what is so, or runs the
// program.
package toolbox

import (
	_ "embed"
	"slices"
	"strings"
)

// Bin is the directory of the scripts on a node.
const Bin = "/run/fairway-lab/bin"

// Packages is where the list of packages lies that apt knows, in images and on nodes.
const Packages = "/usr/share/fairway-lab/packages"

// A Tool is a program of this machine, and the package that has it.
type Tool struct{ Program, Package string }

// Tools are in the toolbox images. Everything else a shell user expects comes from busybox's applets.
var Tools = []Tool{
	{"dash", "dash"}, {"bash", "bash"}, {"curl", "curl"}, {"wget", "wget"}, {"nc", "netcat-openbsd"},
	{"dig", "bind9-dnsutils"}, {"nslookup", "bind9-dnsutils"},
	{"ip", "iproute2"}, {"ss", "iproute2"}, {"tcpdump", "tcpdump"}, {"ping", "iputils-ping"}, {"ps", "procps"},
	{"iptables-nft", "iptables"},
	{"nft", "nftables"}, {"ipvsadm", "ipvsadm"}, {"conntrack", "conntrack"}, {"netstat", "net-tools"}, {"column", "bsdextrautils"},
	{"busybox", "busybox"}, {"getent", "libc-bin"},
}

// The scripts.
var (
	// Apt is apt and apt-get where no package can be fetched.
	//
	//go:embed bin/apt
	Apt string

	// Iptables is iptables and ip6tables; it says where rules are if a chain of another mode is asked for.
	//
	//go:embed bin/iptables
	Iptables string

	// Nslookup is bind's, which would remark on each answer of a server that does not recurse: the cluster's DNS for the
	// cluster's own names.
	//
	//go:embed bin/nslookup
	Nslookup string

	// Wget is busybox's in the image busybox. Debian 12's ends with a segmentation fault when it is given a time limit,
	// as in `wget --spider --timeout=1`, so the limit is left to the applet timeout.
	//
	//go:embed bin/wget
	Wget string

	// Fairway is the command fairway on a node.
	//
	//go:embed bin/fairway
	Fairway string

	// Sudo runs a command as who one is: root.
	//
	//go:embed bin/sudo
	Sudo string
)

// List is the text of the list of packages: their programs, by the names that people install.
func List() string {
	programs := map[string][]string{"dnsutils": {"dig", "nslookup"}, "netcat": {"nc"}, "bsdmainutils": {"column"}}
	for _, tool := range Tools {
		programs[tool.Package] = append(programs[tool.Package], tool.Program)
	}
	var lines []string
	for pkg, names := range programs {
		lines = append(lines, pkg+" "+strings.Join(names, " ")+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
