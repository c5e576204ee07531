package bgp

import (
	"errors"
	"fmt"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// Ready returns why this node's routers do not have all routes yet. It returns nil when all wanted sessions are up with
// their final routes. It cannot know whether a router has written the routes into its kernel. It may be called by any
// goroutine.
func (s *Speaker) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notReady != "" {
		return errors.New(s.notReady)
	}
	for _, want := range s.last.Sessions {
		have := s.sessions[want.Peer]
		if have == nil {
			return fmt.Errorf("there is no session with %s yet", want.Peer)
		}
		if up, lost, _ := have.state(); !up {
			return fmt.Errorf("the session with %s is not up: %s", want.Peer, lost)
		}
	}
	return nil
}

// missingInput returns the input that a final decision still lacks; empty: nothing. asked are the ports at which the proxy
// is asked.
func (s *Speaker) missingInput(in announce.BGPInput, asked map[uint16]bool) string {
	for device := range announce.Interfaces(in) {
		if !s.neighbours.router(device).IsValid() {
			return "no router is heard behind " + device + " yet"
		}
	}
	for port := range asked {
		if !s.cfg.Health.Served(port) {
			return fmt.Sprintf("the node's proxy has not confirmed yet at port %d that it has programmed the kernel", port)
		}
	}
	return ""
}
