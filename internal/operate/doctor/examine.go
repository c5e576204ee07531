package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Examine judges facts.
func Examine(f Facts) Report {
	r := Report{Node: f.Node}
	for _, check := range []func(Facts) []Line{
		privileges, kernelModes, podNetworks, programs, conntrack, forwarding, cgroups, ports, otherProxies, cniConfigs, firewalls, apiServer, clock, rights, mtu,
	} {
		r.Lines = append(r.Lines, check(f)...)
	}
	return r
}

func one(check string, level Level, do, format string, args ...any) []Line {
	return []Line{{check, level, fmt.Sprintf(format, args...), do}}
}

const asRoot = "run it as root (sudo fairway doctor), or in the agent's pod"

func privileges(f Facts) []Line {
	if f.Root {
		return one("privileges", OK, "", "this process may look at the kernel's rules")
	}
	return one("privileges", Skipped, asRoot, "not root: modes, other programs' rules and the processes behind ports are not seen")
}

// kernelModes returns a line for each mode. Only the configured mode must work.
func kernelModes(f Facts) (lines []Line) {
	works := false
	for _, m := range f.Modes {
		works = works || m.Err == ""
	}
	for _, m := range f.Modes {
		check := "mode " + m.Name
		switch {
		case m.Err == "":
			lines = append(lines, one(check, OK, "", "works: the kernel (%s) accepts what it needs", f.Kernel)...)
		case !f.Root:
			lines = append(lines, one(check, Skipped, asRoot, "%s", m.Err)...)
		case f.Mode == m.Name:
			lines = append(lines, one(check, Failure, "load or install what is missing, or choose a mode that works with --proxy-mode", "%s", m.Err)...)
		case f.Mode == "auto" && !works:
			lines = append(lines, one(check, Failure, "one of the modes must work", "%s", m.Err)...)
		default:
			lines = append(lines, one(check, OK, "", "does not work here, and is not asked for: %s", m.Err)...)
		}
	}
	return lines
}

// podNetworks returns a line for each way that the kernel may lack. Only the configured way must work.
func podNetworks(f Facts) (lines []Line) {
	for _, way := range f.Ways {
		check := "pod network " + way.Name
		asked := f.PodNetwork == way.Name || f.PodNetwork == "auto" && way.Name == "vxlan"
		switch {
		case way.Err == "":
			lines = append(lines, one(check, OK, "", "the kernel (%s) has it", f.Kernel)...)
		case !f.Root:
			lines = append(lines, one(check, Skipped, asRoot, "%s", way.Err)...)
		case asked:
			lines = append(lines, one(check, Failure, "load or install what is missing, or choose another way with --pod-network", "%s", way.Err)...)
		default:
			lines = append(lines, one(check, OK, "", "does not work here, and is not asked for: %s", way.Err)...)
		}
	}
	return lines
}

func programs(f Facts) (lines []Line) {
	var there []string
	withRules := []string{}
	for _, p := range f.Programs {
		if p.Version != "" {
			there = append(there, p.Version)
		}
		if p.Rules > 0 {
			withRules = append(withRules, fmt.Sprintf("%s (%d)", p.Name, p.Rules))
		}
		if p.Name == "nft" && p.Version == "" {
			lines = append(lines, one("nft", Failure, "install the package nftables, or run the agent from its image, which has it", "the program nft is not installed; every mode needs it")...)
		}
	}
	if len(there) > 0 {
		lines = append(lines, one("programs", OK, "", "%s", strings.Join(there, "; "))...)
	}
	if len(withRules) > 1 {
		lines = append(lines, one("iptables", Warning, "let all programs of the node use the same one (update-alternatives --config iptables): packets pass the rules of both",
			"both kinds have rules: %s", strings.Join(withRules, ", "))...)
	}
	return lines
}

// The shares of the conntrack table at which conntrack warns and fails, in percent. The kernel drops new connections when
// the table is full.
const (
	conntrackWarns = 70
	conntrackFails = 90
)

func conntrack(f Facts) []Line {
	c := f.Conntrack
	switch {
	case !c.Known:
		return one("conntrack", Warning, "modprobe nf_conntrack; the agent's first rule loads it too, where modules may be loaded", "the kernel has no connection table yet")
	case c.Max > 0 && 100*c.Count >= conntrackFails*c.Max:
		return one("conntrack", Failure, "raise net.netfilter.nf_conntrack_max (deploy/components/conntrack does), or find who makes so many connections: conntrack -S", "the table is full: %d of %d entries; new connections are dropped", c.Count, c.Max)
	case c.Max > 0 && 100*c.Count >= conntrackWarns*c.Max:
		return one("conntrack", Warning, "raise net.netfilter.nf_conntrack_max (deploy/components/conntrack does)", "%d of %d entries are in use", c.Count, c.Max)
	}
	return one("conntrack", OK, "", "%d of %d entries are in use", c.Count, c.Max)
}

// forwarding checks that the kernel forwards packets to pods. The agent sets this only if it provides the pod network.
func forwarding(f Facts) (lines []Line) {
	switch v, ok := f.Sysctls["net.ipv4.ip_forward"]; {
	case !ok:
		lines = one("forwarding", Skipped, "look whether /proc/sys is there", "net.ipv4.ip_forward cannot be read")
	case v == "1":
		lines = one("forwarding", OK, "", "net.ipv4.ip_forward is 1")
	case f.PodNetwork != "":
		lines = one("forwarding", OK, "", "net.ipv4.ip_forward is %s; the agent sets it, because it makes the pod network", v)
	default:
		lines = one("forwarding", Failure, "sysctl -w net.ipv4.ip_forward=1, and the same in /etc/sysctl.d", "net.ipv4.ip_forward is %s: the node passes no packet on to a pod", v)
	}
	if f.Sysctls["net.bridge.bridge-nf-call-iptables"] == "0" {
		lines = append(lines, one("bridge", Warning, "sysctl -w net.bridge.bridge-nf-call-iptables=1 if pods are on a bridge: a pod does not reach a Service whose endpoint is on the same bridge",
			"net.bridge.bridge-nf-call-iptables is 0")...)
	}
	if v := f.Sysctls["net.ipv4.conf.all.rp_filter"]; v == "1" {
		lines = append(lines, one("rp_filter", Warning, "sysctl -w net.ipv4.conf.all.rp_filter=2 if the node has several uplinks",
			"net.ipv4.conf.all.rp_filter is 1 (strict): packets whose way back is another link are dropped")...)
	}
	return lines
}

func cgroups(f Facts) []Line {
	switch {
	case f.CgroupV2 && f.CgroupV1:
		return one("cgroups", OK, "", "v1, with v2 beside it")
	case f.CgroupV2:
		return one("cgroups", OK, "", "v2")
	case f.CgroupV1:
		return one("cgroups", Warning, "boot with systemd.unified_cgroup_hierarchy=1", "v1 only: kubelets from 1.35 on refuse it by default")
	}
	return one("cgroups", Skipped, "look whether /sys/fs/cgroup is mounted", "no cgroup file system is visible from here")
}

func ports(f Facts) (lines []Line) {
	for _, p := range f.Ports {
		check := fmt.Sprintf("port %d", p.Port)
		switch {
		case p.Holder == "":
			lines = append(lines, one(check, OK, "", "free, for %s", p.What)...)
		case p.Agent:
			lines = append(lines, one(check, OK, "", "%s of the agent: %s", p.What, p.Holder)...)
		default:
			lines = append(lines, one(check, Failure, "end that program; a kube-proxy that is replaced (--replace-kube-proxy) may have it until it ends", "in use by %s; the agent needs it for %s", p.Holder, p.What)...)
		}
	}
	return lines
}

func otherProxies(f Facts) []Line {
	switch {
	case f.Others.Err != "" || !f.Root && len(f.Others.Proxies) == 0:
		return one("other proxies", Skipped, asRoot, "cannot be looked for%s", because(f.Others.Err))
	case len(f.Others.Proxies) == 0:
		return one("other proxies", OK, "", "none")
	}
	return one("other proxies", Warning, "of two service proxies one may undo the other's work: replace kube-proxy (--replace-kube-proxy, docs/operations.md), turn the service proxy of the CNI plugin off, or use --proxy-mode none",
		"%s", strings.Join(f.Others.Proxies, ", "))
}

// cniConfigs checks that the container runtime uses Fairway's configuration if Fairway provides the pod network.
func cniConfigs(f Facts) []Line {
	if f.PodNetwork == "" || len(f.Others.Configs) == 0 {
		return nil
	}
	return one("CNI configuration", Failure, "remove the other CNI plugin, then delete the file in /etc/cni/net.d and the pods that it connected",
		"the container runtime uses %s, which comes before Fairway's by its name: Fairway connects no new pod", f.Others.Configs[0])
}

func because(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

func firewalls(f Facts) []Line {
	switch {
	case f.Others.Err != "" || !f.Root:
		return one("firewalls", Skipped, asRoot, "cannot be looked for%s", because(f.Others.Err))
	case len(f.Others.Drops) == 0:
		return one("firewalls", OK, "", "no chain of another program drops what is forwarded or comes in, by its policy or its last rule")
	}
	return one("firewalls", Warning, "let the firewall accept traffic from and to the pods' addresses (for forward), and NodePorts, 10250 and 10256 (for input): what Fairway accepts they may still drop",
		"these chains drop what no rule of theirs accepts: %s", strings.Join(f.Others.Drops, ", "))
}

func apiServer(f Facts) []Line {
	a := f.API
	switch {
	case a.Skipped != "":
		return one("API server", Skipped, "give --kubeconfig FILE, or --master URL", "%s", a.Skipped)
	case a.ClusterIP:
		return one("API server", Failure, "give the address of the API server itself (--master, FAIRWAY_API_SERVER): it is server: in /etc/kubernetes/kubelet.conf",
			"%s is the address of a Service: the agent is what makes that address work", a.Server)
	case a.Err != "":
		return one("API server", Failure, "look whether the address is right, the network lets the node reach it, and the credentials are valid", "%s: %s", a.Server, a.Err)
	case a.Took > time.Second:
		return one("API server", Warning, "look at the network, or the load of the API server", "%s (%s) needed %v for an answer", a.Server, a.Version, a.Took.Round(time.Millisecond))
	}
	return one("API server", OK, "", "%s answers (%s), and is not reached through a Service", a.Server, a.Version)
}

// The limits of a clock's difference. Service account tokens and certificates have a start time.
const (
	skewWarns = 10 * time.Second
	skewFails = 5 * time.Minute
)

func clock(f Facts) []Line {
	skew := f.API.Skew.Abs()
	way := "ahead of"
	if f.API.Skew < 0 {
		way = "behind"
	}
	const do = "let the node follow a time server (chrony, systemd-timesyncd)"
	switch {
	case !f.API.SkewKnown:
		return one("clock", Skipped, "", "nothing to compare it with: the API server was not reached")
	case skew >= skewFails:
		return one("clock", Failure, do, "%v %s the API server's: certificates and tokens may not be valid", skew, way)
	case skew >= skewWarns:
		return one("clock", Warning, do, "%v %s the API server's", skew, way)
	}
	return one("clock", OK, "", "agrees with the API server's")
}

func rights(f Facts) (lines []Line) {
	if f.API.Skipped != "" || f.API.Err != "" {
		return nil
	}
	switch kinds := strings.Join(f.API.Forbidden, ", "); {
	case kinds == "":
		lines = one("rights", OK, "", "these credentials may list what an agent reads")
	case f.API.Own:
		lines = one("rights", Failure, "apply deploy/agent/rbac.yaml", "the agent's service account may not list %s", kinds)
	default:
		lines = one("rights", Warning, "nothing, if the agent will use its service account, as in deploy/; else give these credentials the rights of deploy/agent/rbac.yaml", "these credentials may not list %s", kinds)
	}
	if !f.API.NodeKnown && !slices.Contains(f.API.Forbidden, "nodes") {
		lines = append(lines, one("node", Warning, "give the name of the Node object with --hostname-override", "the API server has no Node %q", f.Node)...)
	}
	if why := f.API.NetworkUnavailable; why != "" {
		lines = append(lines, one("node", Warning, "end the program that sets the condition (a cloud's route controller, a former CNI plugin), then set the condition to False in the Node's status: kubectl edit node NAME --subresource status",
			"the Node has the condition NetworkUnavailable, so that no new pod starts there: %s", why)...)
	}
	if n := f.API.KubeProxies; n > 0 && f.AgentRuns && f.Mode != "none" {
		lines = append(lines, one("kube-proxy", Warning, "fairway upgrade ends it, if Fairway replaces it (--replace-kube-proxy true); next time: kubeadm upgrade apply --skip-phases addon/kube-proxy",
			"the DaemonSet kube-system/kube-proxy has %d pods next to the agents; kubeadm upgrade writes it again", n)...)
	}
	return lines
}

// mtu compares the MTU of the pods' links with that of the uplink. A pod's packet must fit together with the tunnel's
// header.
func mtu(f Facts) []Line {
	i := slices.IndexFunc(f.Links, func(l Link) bool { return l.Name == f.Uplink })
	if f.Uplink == "" || i < 0 {
		return one("MTU", Skipped, "", "the node has no default route, so its uplink is not known")
	}
	up := f.Links[i]
	var large []string
	pods := 0
	for _, l := range f.Links {
		if !l.Pods {
			continue
		}
		pods++
		if l.MTU+l.Overhead > up.MTU {
			large = append(large, fmt.Sprintf("%s has %d", l.Name, l.MTU+l.Overhead))
		}
	}
	switch {
	case len(large) > 0:
		more := ""
		if n := len(large) - 3; n > 0 {
			large, more = large[:3], fmt.Sprintf(" and %d more", n)
		}
		return one("MTU", Warning, "set the MTU of the CNI plugin so that pods' packets (and what a tunnel adds) fit: else large answers hang", "the uplink %s has %d bytes, but %s%s", up.Name, up.MTU, strings.Join(large, ", "), more)
	case pods == 0:
		return one("MTU", OK, "", "the uplink %s has %d bytes; there is no pod yet", up.Name, up.MTU)
	}
	return one("MTU", OK, "", "packets of pods fit the uplink %s (%d bytes)", up.Name, up.MTU)
}
