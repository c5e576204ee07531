// Package toolbox defines the tools for a person who looks around in the lab, in the toolbox images and on the nodes.
// The tools are programs of this machine. Scripts come before them in PATH where the lab differs from the program's
// expectations.
//
//	tools ── programs of this machine ──┐
//	bin/apt        nothing can be fetched ├──► images busybox, curl, dnsutils, ubuntu: /usr/local/sbin, /usr/bin
//	bin/iptables   another mode's chains ─┴──► nodes: Bin, first in PATH of `fairway-lab node` and `shell`
//	bin/fairway    the agent's own ──────────► nodes
//
// It promises that no script changes the system by itself: a script prints an explanation or runs the program.
package toolbox

import (
	_ "embed"
	"slices"
	"strings"
)

// Bin is the directory of the scripts on a node.
const Bin = "/run/fairway-lab/bin"

// Packages is the path of the list of packages that apt knows, in images and on nodes.
const Packages = "/usr/share/fairway-lab/packages"

// A Tool is a program of this machine, and the package that contains it.
type Tool struct{ Program, Package string }

// Tools are the programs in the toolbox images. Busybox's applets cover the other programs that a shell user expects.
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
	// Apt stands for apt and apt-get, because a lab cannot fetch packages.
	//
	//go:embed bin/apt
	Apt string

	// Iptables stands for iptables and ip6tables. If a command names a chain of another mode, it prints the place of
	// the rules.
	//
	//go:embed bin/iptables
	Iptables string

	// Nslookup runs bind's nslookup with queries that ask for no recursion. Otherwise nslookup would print a remark on
	// each answer of the cluster DNS, which does not recurse for the cluster's own names.
	//
	//go:embed bin/nslookup
	Nslookup string

	// Wget runs busybox's wget in the image busybox. The applet of Debian 12 crashes with a segmentation fault if it
	// gets a time limit, as in `wget --spider --timeout=1`. So the script uses the applet timeout for the limit.
	//
	//go:embed bin/wget
	Wget string

	// Fairway is the command fairway on a node.
	//
	//go:embed bin/fairway
	Fairway string

	// Sudo runs a command as the current user, who is root already.
	//
	//go:embed bin/sudo
	Sudo string
)

// List returns the text of the list of packages with their programs. It also contains the usual names of some packages,
// such as dnsutils.
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
