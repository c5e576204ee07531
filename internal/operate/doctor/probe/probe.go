// Package probe collects the facts that package doctor judges.
//
//	modes' probes, nf_tables, iptables, /proc, /sys, links ─┐
//	API server, once ───────────────────────────────────────┴─→ doctor.Facts
//
// It changes nothing, asks the kernel instead of comparing versions, and ends with its context.
package probe

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/ipc/listener"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/doctor"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/podnetwork/node"
	"github.com/fairway-net/fairway/internal/podnetwork/node/tunnel"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/text"
)

// Config selects the facts to collect.
type Config struct {
	Node       string
	Mode       string // --proxy-mode
	PodNetwork string // --pod-network; empty: another program provides the pod network
	Connection kube.Connection
	// Healthz and Metrics are the agent's ports. 0 means that it does not listen.
	Healthz, Metrics uint16
}

// Look collects the facts of the calling thread's network namespace.
func Look(ctx context.Context, c Config) doctor.Facts {
	f := doctor.Facts{
		Node: c.Node, Root: os.Geteuid() == 0, Kernel: kernel(), Mode: c.Mode, PodNetwork: c.PodNetwork,
		Sysctls: sysctls(), Conntrack: conntrack(),
		CgroupV1: exists("/sys/fs/cgroup/memory") || exists("/sys/fs/cgroup/cpu"), CgroupV2: cgroupV2(),
	}
	agent, err := status.Ask(ctx)
	f.AgentRuns = err == nil
	f.Modes = probeModes(ctx)
	f.Ways = probeWays(ctx)
	f.Programs = programs(ctx, f.Root)
	f.Ports = ports(c, f.AgentRuns)
	f.Others = others(ctx)
	f.Others.Configs = node.ConfigsBefore(node.DefaultConfDir)
	f.Links, f.Uplink = links()
	f.API = api(ctx, c)
	if f.AgentRuns && f.Node == "" {
		f.Node = agent.Node
	}
	return f
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func cgroupV2() bool {
	return exists("/sys/fs/cgroup/cgroup.controllers") || exists("/sys/fs/cgroup/unified/cgroup.controllers")
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// probeWays asks the kernel for the features of the pod network.
func probeWays(ctx context.Context) (all []doctor.ModeFact) {
	for _, way := range []plan.Way{plan.WayVXLAN, plan.WayWireGuard} {
		fact := doctor.ModeFact{Name: string(way)}
		if err := tunnel.Probe(ctx, way); err != nil {
			fact.Err = text.OneLine(err).Error()
		}
		all = append(all, fact)
	}
	return all
}

// probeModes asks each mode whether it works here, and asks the kernel whether it would accept the mode's program.
func probeModes(ctx context.Context) (all []doctor.ModeFact) {
	for _, m := range modes.All() {
		fact := doctor.ModeFact{Name: m.Name}
		dp, err := m.Open(modes.Options{})
		if err == nil {
			if err = dp.Probe(ctx); err == nil && dp.Info().Program != "" {
				err = nft.Try(ctx, dp.Info().Program)
			}
			dp.Close()
		}
		if err != nil {
			fact.Err = text.OneLine(err).Error()
		}
		all = append(all, fact)
	}
	return all
}

// programs describes the programs that modes start, with iptables' rules.
func programs(ctx context.Context, root bool) (all []doctor.ProgramFact) {
	names := []string{"nft", xtables.Program(xtables.NFT, true, ""), xtables.Program(xtables.Legacy, true, "")}
	for i, name := range names {
		p := doctor.ProgramFact{Name: name}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		if data, err := exec.CommandContext(ctx, name, "--version").Output(); err == nil {
			p.Version, _, _ = strings.Cut(strings.TrimSpace(string(data)), "\n")
			p.Version = strings.TrimSpace(strings.TrimPrefix(p.Version, "nftables "))
			if i == 0 {
				p.Version = "nft " + p.Version
			}
		}
		if i > 0 && root && p.Version != "" {
			p.Rules = rules(ctx, []xtables.Variant{xtables.NFT, xtables.Legacy}[i-1])
		}
		cancel()
		all = append(all, p)
	}
	return all
}

// rules counts the rules of an iptables variant.
func rules(ctx context.Context, v xtables.Variant) (n int) {
	_ = xtables.Save(ctx, v, true, func(l xtables.Line) { // unreadable rules count as none: the mode's probe reports the reason
		if l.Kind == xtables.Rule {
			n++
		}
	})
	return n
}

func read(path string) string {
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}

// sysctls reads the settings that package doctor judges. It omits missing ones.
func sysctls() map[string]string {
	all := map[string]string{}
	for _, name := range []string{"net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables", "net.ipv4.conf.all.rp_filter"} {
		if v := read("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); v != "" {
			all[name] = v
		}
	}
	return all
}

func conntrack() (c doctor.ConntrackFacts) {
	var err1, err2 error
	c.Max, err1 = strconv.Atoi(read("/proc/sys/net/netfilter/nf_conntrack_max"))
	c.Count, err2 = strconv.Atoi(read("/proc/sys/net/netfilter/nf_conntrack_count"))
	c.Known = err1 == nil && err2 == nil
	return c
}

func ports(c Config, agentRuns bool) (all []doctor.PortFact) {
	for _, p := range []doctor.PortFact{{Port: c.Healthz, What: "/healthz"}, {Port: c.Metrics, What: "/metrics"}} {
		if p.Port == 0 {
			continue
		}
		if by, ok := listener.Find(p.Port); ok {
			p.Holder = by.String()
			p.Agent = agentRuns && (by.ID == 0 || by.Name == "fairway")
		}
		all = append(all, p)
	}
	return all
}

func api(ctx context.Context, c Config) doctor.APIFacts {
	i, err := kube.Inspect(ctx, c.Connection, c.Node)
	if err != nil {
		what, _ := text.SplitHint(err.Error())
		return doctor.APIFacts{Skipped: what}
	}
	f := doctor.APIFacts{
		Server: i.Server, Version: i.Version, Took: i.Took, ClusterIP: i.ClusterIP, Addr: i.Addr,
		Skew: i.Ahead, SkewKnown: i.Dated, Forbidden: i.Forbidden, Own: i.ServiceAccount, NodeKnown: i.NodeKnown,
		NetworkUnavailable: i.NetworkUnavailable, KubeProxies: i.KubeProxies,
	}
	if i.Err != nil {
		f.Err = i.Err.Error()
	}
	return f
}

// overheads are the bytes that tunnels add to a packet, with IPv4 outside.
var overheads = map[string]int{"vxlan": 50, "geneve": 50, "wireguard": 60, "ipip": 20}

// links reads the interfaces, and the name of the one with the default route.
func links() (all []doctor.Link, uplink string) {
	found, err := netlinksafe.LinkList()
	if err != nil {
		return nil, "" // the check reports that it does not know
	}
	for _, l := range found {
		name, kind := l.Attrs().Name, l.Type()
		if name == "lo" {
			continue
		}
		tunnel := overheads[kind] > 0
		all = append(all, doctor.Link{
			Name: name, MTU: l.Attrs().MTU, Overhead: overheads[kind],
			Pods: tunnel || kind == "veth" || kind == "bridge",
		})
	}
	for _, line := range strings.Split(read("/proc/thread-self/net/route"), "\n") {
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return all, f[0]
		}
	}
	return all, ""
}
