package config

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/operate/settings"
)

// ToolFlags holds the flags of a command that decides as the agent does and changes nothing. It has the agent's flags
// that influence decisions.
type ToolFlags struct {
	fs    *pflag.FlagSet
	alias *pflag.Flag // --node; nil: there is none
}

// agentOnly lists the agent's flags without a meaning for a command that only reads.
var agentOnly = []string{
	"cleanup", "after-kube-proxy", "settings-dir", "replace-kube-proxy", "count-traffic", "oom-score-adj",
	"healthz-bind-address", "metrics-bind-address", "pod-network", "non-masquerade-cidrs", "egress-addresses", "network-policy", "network-policy-log", "network-policy-reject", "cni-bin-dir", "cni-conf-dir", "pod-fragments",
	"sync-period", "iptables-sync-period", "ipvs-sync-period",
	"min-sync-period", "iptables-min-sync-period", "ipvs-min-sync-period",
	"ipvs-tcp-timeout", "ipvs-tcpfin-timeout", "ipvs-udp-timeout",
	"log-level", "log-format", "logging-format",
}

// NewToolFlags adds the flags to fs. A flag of fs keeps its letter, and the agent's flag with the same letter is left out.
func NewToolFlags(fs *pflag.FlagSet) *ToolFlags {
	all := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	NewFlags(all)
	t := &ToolFlags{fs: pflag.NewFlagSet("tool", pflag.ContinueOnError)}
	all.VisitAll(func(f *pflag.Flag) {
		taken := f.Shorthand != "" && fs.ShorthandLookup(f.Shorthand) != nil
		if !taken && !slices.Contains(agentOnly, f.Name) && !strings.HasPrefix(f.Name, "conntrack-") {
			t.fs.AddFlag(f)
		}
	})
	fs.AddFlagSet(t.fs)
	return t
}

// Name adds --node, which is --hostname-override for people, and says where a person's kubeconfig comes from.
func (t *ToolFlags) Name(fs *pflag.FlagSet) {
	own := t.fs.Lookup("hostname-override")
	fs.VarPF(own.Value, "node", "", "The `name` of the node to decide for (default the host name); the same as --hostname-override")
	t.alias = fs.Lookup("node")
	t.fs.Lookup("kubeconfig").Usage = "Kubeconfig `file` (default $KUBECONFIG or ~/.kube/config; in a pod its service account)"
}

// Load merges the running agent's arguments with the given flags, and a given flag wins. A flag that the agent would
// ignore because of --config is an error.
func (t *ToolFlags) Load(running []string) (*Config, error) {
	agent := NewFlags(pflag.NewFlagSet("agent", pflag.ContinueOnError))
	agent.fs.SetOutput(io.Discard)
	if err := agent.fs.Parse(running); err != nil {
		return nil, fmt.Errorf("read the running agent's flags: %w", err)
	}
	if err := agent.applySettings(); err != nil {
		return nil, fmt.Errorf("read the running agent's settings: %w", err)
	}
	agent.own.settingsDir = "" // given flags win over settings too
	if t.alias != nil && t.alias.Changed {
		t.fs.Lookup("hostname-override").Changed = true
	}
	var ignored []string
	var failed error
	t.fs.VisitAll(func(f *pflag.Flag) {
		if !f.Changed || failed != nil {
			return
		}
		if agent.file != "" && !t.fs.Changed("config") && !slices.Contains(besideFile, f.Name) {
			ignored = append(ignored, "--"+f.Name)
		}
		failed = set(agent.fs, f.Name, valueOf(f))
	})
	if failed != nil {
		return nil, failed
	}
	if len(ignored) > 0 {
		return nil, fmt.Errorf("the agent runs with --config %s, beside which %s would have no effect [name another file with --config]",
			agent.file, strings.Join(ignored, ", "))
	}
	c, err := agent.Load()
	if err == nil {
		c.Person = running == nil
	}
	return c, err
}

// ArgsOf returns the settings of the ConfigMap fairway-agent as the agents' flags, for a command on another machine. Such
// a command reaches the API server in its own way, and cannot choose a mode for the nodes.
func ArgsOf(values map[string]string) (args []string) {
	for _, s := range settings.Of(settings.Agent) {
		value := strings.TrimSpace(values[s.Key])
		if value == "" || slices.Contains(ofNodes, s.Flag) || s.Flag == "proxy-mode" && value == "auto" {
			continue
		}
		args = append(args, "--"+s.Flag+"="+value)
	}
	return args
}

// ofNodes lists the settings that mean nothing on another machine.
var ofNodes = []string{"master", "replace-kube-proxy", "log-format", "metrics-bind-address"}
