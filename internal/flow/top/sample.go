package top

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	"github.com/fairway-net/fairway/internal/api"
)

// The bounds of a node's sample.
const (
	// MaxEntries is how many entries of conntrack a node reads for a sample.
	MaxEntries = 500_000
	// MaxRows is how many Service ports a sample has, and how many endpoints. Those with the most connections stay.
	MaxRows = 2000
)

// A Sample is what one node knows at one time. New and Bytes are cumulative since the first sample of the process that
// reads them. Rejects and Drops are cumulative since the rules were loaded. Connections are present values.
type Sample struct {
	// Run is another number after a restart of the process. Millis is the process's clock.
	Run    int64 `json:"run"`
	Millis int64 `json:"millis"`
	// Modes are the proxy modes with rules on the node.
	Modes []string `json:"modes"`
	// Entries is the size of the node's conntrack table, and Read how many entries of it were read.
	Entries int `json:"entries"`
	Read    int `json:"read"`
	// CountsBytes says that conntrack counts bytes of new connections. CountsRejects and CountsDrops say that the rules
	// count them.
	CountsBytes   bool `json:"countsBytes"`
	CountsRejects bool `json:"countsRejects"`
	CountsDrops   bool `json:"countsDrops"`
	// AtConnect says that sockets get their endpoint at connect time. These connections are not among the figures.
	AtConnect bool `json:"atConnect,omitempty"`

	Services []ServiceFigures `json:"services"`
	// Endpoints are those of the Service that was asked for.
	Endpoints []EndpointFigures `json:"endpoints,omitempty"`
	// LeftOut is the number of Service ports and endpoints beyond MaxRows.
	LeftOut int `json:"leftOut,omitempty"`
}

// Figures are those of one row on one node.
type Figures struct {
	// Connections are open. Unanswered are TCP connections whose endpoint has answered nothing yet.
	Connections int    `json:"connections"`
	Unanswered  int    `json:"unanswered,omitempty"`
	New         uint64 `json:"new"`
	Bytes       uint64 `json:"bytes"`
	Rejects     uint64 `json:"rejects,omitempty"`
	Drops       uint64 `json:"drops,omitempty"`
}

// ServiceFigures are those of a Service port.
type ServiceFigures struct {
	Service string `json:"service"` // namespace/name:port
	Figures
}

// EndpointFigures are those of an endpoint of a Service port.
type EndpointFigures struct {
	Service string         `json:"service"`
	Addr    netip.AddrPort `json:"addr"`
	Figures
}

// labels is what Kubernetes allows in the names of namespaces and ports. owners is what it allows in the names of
// Services, and of pods with host ports, which have a prefix.
var (
	labels = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	owners = regexp.MustCompile(`^(pod/)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
)

// maxMillis bounds the clock of a process: a year.
const maxMillis = 366 * 24 * 3600 * 1000

// Check refuses a sample that no node of ours writes.
func (s *Sample) Check() error {
	if s.Millis < 0 || s.Millis > maxMillis || s.Entries < 0 || s.Read < 0 || s.LeftOut < 0 {
		return errors.New("the sample has a number that is out of range")
	}
	if len(s.Services) > MaxRows || len(s.Endpoints) > MaxRows || len(s.Modes) > 10 {
		return errors.New("the sample is too long")
	}
	for _, m := range s.Modes {
		if !labels.MatchString(m) {
			return fmt.Errorf("%.100q is not a mode", m)
		}
	}
	for _, f := range s.Services {
		if _, err := portName(f.Service); err != nil {
			return err
		}
		if f.Connections < 0 || f.Unanswered < 0 {
			return fmt.Errorf("%s has a negative number of connections", f.Service)
		}
	}
	for _, f := range s.Endpoints {
		if _, err := portName(f.Service); err != nil {
			return err
		}
		if !f.Addr.IsValid() || f.Addr.Addr().Zone() != "" || f.Connections < 0 || f.Unanswered < 0 {
			return fmt.Errorf("an endpoint of Service %s is no address, or has a negative number of connections", f.Service)
		}
	}
	return nil
}

// portName parses and checks the name of a Service port.
func portName(s string) (api.PortName, error) {
	n, err := api.ParsePortName(s)
	if err != nil || !labels.MatchString(n.Namespace) || !owners.MatchString(n.Name.Name) || n.Port != "" && !labels.MatchString(n.Port) {
		return n, fmt.Errorf("%.200q is not the name of a Service port", s)
	}
	return n, nil
}
