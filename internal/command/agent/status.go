package agent

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/proxy"
	"github.com/fairway-net/fairway/internal/proxy/health"
)

// agentStatus collects the agent's status: conditions that its parts set on the board, and values that it reads when it
// is asked. All fields are set before the first question.
type agentStatus struct {
	board      status.Board
	counter    status.Counter
	started    time.Time
	version    string
	configured string // --proxy-mode
	otherModes atomic.Pointer[[]string]
	egress     atomic.Pointer[egressAddresses] // nil: no egress addresses

	cfg     *config.Config
	store   *kube.Store
	state   *health.State
	applied *proxy.Applied
}

func newAgentStatus(cfg *config.Config, version string) *agentStatus {
	return &agentStatus{
		started: time.Now(), version: version, configured: cfg.Mode, cfg: cfg,
		state: health.NewState(cfg.HealthTimeout()), applied: &proxy.Applied{},
	}
}

// published holds the status of the current run.
type published struct {
	version string
	now     atomic.Pointer[agentStatus]
}

func (p *published) set(s *agentStatus) { p.now.Store(s) }

// node returns the current status for fairway status.
func (p *published) node() status.Node {
	if s := p.now.Load(); s != nil {
		return s.node()
	}
	return status.Node{Version: p.version, OtherProxies: []string{}, Degraded: []status.Condition{}, Started: time.Now(), Time: time.Now()}
}

// node returns the current status.
func (s *agentStatus) node() status.Node {
	n := status.Node{
		Node: s.cfg.NodeName, Version: s.version, Mode: s.cfg.Mode, Configured: s.configured, PodNetwork: s.cfg.PodNetwork, NetworkPolicies: s.cfg.NetworkPolicy,
		Started: s.started, OtherProxies: []string{},
	}
	failed := command.Written(&n, s.state.Verdict())
	if s.cfg.Mode == datapath.None { // no rules to write, so nothing waits
		n.InSync, n.Since = true, s.started
	}
	if t := s.applied.Table(); t != nil {
		n.Services, n.Addresses, n.Endpoints = s.counter.Count(t)
	}
	own, _ := s.store.Node()
	n.Drained = own.Drained
	n.Egress = s.egress.Load().status()
	if others := s.otherModes.Load(); others != nil {
		n.OtherProxies = append(n.OtherProxies, *others...)
	}
	s.board.Set(status.RulesNotWritten, failed)
	s.board.Set(status.NodeNotEligible, s.notEligible())
	s.board.Set(status.APIReadFailed, s.unread())
	s.board.Set(status.ListDoubted, s.doubted())
	n.Degraded = s.board.Conditions()
	return n
}

// public returns the status without the details that only this node may see.
func (s *agentStatus) public() any { return s.node().Public() }

// found records the rules of another service proxy.
func (s *agentStatus) found(rules []string, stuck error) {
	s.otherModes.Store(&rules)
	message := ""
	if len(rules) > 0 {
		message = "rules of a kube-proxy are on this node: " + strings.Join(rules, ", ") + " [--replace-kube-proxy removes them]"
	}
	if stuck != nil {
		message = "cannot remove kube-proxy's rules: " + stuck.Error()
	}
	s.board.Set(status.OtherProxyRules, message)
}

// unread describes the lists that the API server does not deliver, and the consequence.
func (s *agentStatus) unread() string {
	text := kube.Unreadable(s.store.Troubles())
	var without []string
	for _, t := range s.store.Troubles() {
		if t.Without != "" {
			without = append(without, t.Without)
		}
	}
	if len(without) > 0 {
		text += " (meanwhile: " + strings.Join(without, "; ") + ")"
	}
	return text
}

// doubted describes objects that the API server seems to have lost.
func (s *agentStatus) doubted() string {
	kept := s.store.Kept()
	if kept == 0 {
		return ""
	}
	return fmt.Sprintf("%d objects are kept although the API server's last list lacks them [was it restored from a backup?]", kept)
}

// eligible reports whether load balancers may use the node.
func (s *agentStatus) eligible() bool {
	n, ok := s.store.Node()
	return ok && n.Eligible
}

// notEligible returns the reason why load balancers may not use the node. /healthz shows it to everyone, so it has no
// error text.
func (s *agentStatus) notEligible() string {
	if s.eligible() {
		return ""
	}
	if _, ok := s.store.Node(); ok {
		return "the node's object is gone from the API server, or the node is about to be deleted"
	}
	switch troubles := s.store.Troubles(); {
	case len(troubles) == 0:
		return "the API server has not sent this node's object yet"
	case troubles[0].Refused:
		return "waiting for the API server, which refuses to list " + troubles[0].Kind + ": see fairway status on the node"
	}
	return "waiting for the API server, which does not answer: see fairway status on the node"
}

// text returns an error's text, or "".
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
