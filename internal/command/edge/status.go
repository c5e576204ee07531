package edge

import (
	"os"
	"time"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/proxy"
	"github.com/fairway-net/fairway/internal/proxy/health"
)

// edgeStatus answers `fairway status` on the edge's machine. speaks returns why announcing does not work.
type edgeStatus struct {
	board   status.Board
	counter status.Counter
	started time.Time
	version string
	mode    string
	store   *kube.Store
	state   *health.State
	applied *proxy.Applied
	speaks  func() error
	cutOff  func() string
}

// node returns the current status.
func (s *edgeStatus) node() status.Node {
	name, _ := os.Hostname()
	n := status.Node{Node: name + " (edge)", Version: s.version, Mode: s.mode, Started: s.started, OtherProxies: []string{}}
	failed := command.Written(&n, s.state.Verdict())
	if t := s.applied.Table(); t != nil {
		n.Services, n.Addresses, n.Endpoints = s.counter.Count(t)
	}
	s.board.Set(status.RulesNotWritten, failed)
	s.board.Set(status.APIReadFailed, kube.Unreadable(s.store.Troubles()))
	s.board.Set(status.NodesSilent, s.cutOff())
	silent := ""
	if err := s.speaks(); err != nil {
		silent = err.Error()
	}
	s.board.Set(status.NotAnnouncing, silent)
	n.Degraded = s.board.Conditions()
	return n
}
