package page

import (
	"context"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/path"
)

// A Service is one row of the list of Services.
type Service struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Type      string   `json:"type"`
	Addresses []string `json:"addresses,omitempty"`
	Ports     []string `json:"ports,omitempty"`
	Ready     int      `json:"ready"`     // endpoints
	Endpoints int      `json:"endpoints"` // ready or not
	// Announcers are the nodes that announce its addresses.
	Announcers []string `json:"announcers,omitempty"`
	Finding    string   `json:"finding,omitempty"`
}

// A State is the state of the page itself.
type State struct {
	Cluster string `json:"cluster"` // the API server
	Loaded  bool   `json:"loaded"`  // the first lists are complete
	// Error says in one sentence why the rows are missing or old. Advice is the remedy.
	Error    string   `json:"error,omitempty"`
	Advice   string   `json:"advice,omitempty"`
	Warnings []string `json:"warnings,omitempty"` // missing knowledge
	Nodes    []string `json:"nodes,omitempty"`    // sorted
}

// A View describes one Service, for packets from one place of one node.
type View struct {
	Service  Service  `json:"service"`
	Selector string   `json:"selector,omitempty"`
	Node     string   `json:"node,omitempty"`
	Zone     string   `json:"zone,omitempty"`
	From     string   `json:"from"`
	Groups   []Group  `json:"groups"`
	Policies Policies `json:"policies"`
	// Announced has the addresses of a Service of type LoadBalancer.
	Announced []Announced `json:"announced,omitempty"`
	Events    []Event     `json:"events"`
	Findings  []string    `json:"findings,omitempty"`
	Unread    []string    `json:"unread,omitempty"` // errors of optional parts
}

// A Group has the frontends of one port that lead to the same endpoints. Headless Services have no frontends.
type Group struct {
	Frontends []Frontend `json:"frontends"`
	Endpoints []Endpoint `json:"endpoints"`
	More      int        `json:"more,omitempty"` // endpoints that are left out of the list
}

// A Frontend is an address of a Service, with the fate of packets to it.
type Frontend struct {
	Address  string   `json:"address"`
	Kind     string   `json:"kind"`
	Port     string   `json:"port,omitempty"`
	ServedAt []string `json:"servedAt,omitempty"`
	Options  []string `json:"options,omitempty"`
	Action   string   `json:"action"`
	Reason   string   `json:"reason"`
	Source   string   `json:"source,omitempty"`
}

// An Endpoint is an endpoint of a group, used or not.
type Endpoint struct {
	Address string  `json:"address"`
	Pod     string  `json:"pod,omitempty"`
	Node    string  `json:"node,omitempty"`
	Used    bool    `json:"used"`
	Reason  string  `json:"reason,omitempty"`
	Share   float64 `json:"share"` // of new connections
	Health  string  `json:"health"`
}

// Policies are the policies that decide about the pods of a Service.
type Policies struct {
	Pods        int            `json:"pods"`
	NotEnforced string         `json:"notEnforced,omitempty"`
	Selecting   []PolicyOfPods `json:"selecting"`
}

// A PolicyOfPods decides about one direction of some pods.
type PolicyOfPods struct {
	Direction string `json:"direction"`
	Name      string `json:"name"`
	Tier      string `json:"tier,omitempty"` // of a ClusterNetworkPolicy
	Pods      int    `json:"pods"`
}

// Announced is an address of a load balancer, with the nodes that announce it.
type Announced struct {
	Address   string     `json:"address,omitempty"` // empty: it has none yet
	By        []Announce `json:"by"`
	Reason    string     `json:"reason,omitempty"` // why nobody does
	Elsewhere []Announce `json:"elsewhere"`        // nodes that do not, with the reason
}

// An Announce is one node and one address.
type Announce struct {
	Node     string    `json:"node"`
	Protocol string    `json:"protocol"`
	Since    time.Time `json:"since,omitzero"`
	Through  []string  `json:"through,omitempty"` // interfaces, or BGPPeers
	Reason   string    `json:"reason,omitempty"`
}

// An Event is an event of the Service.
type Event struct {
	Time    time.Time `json:"time,omitzero"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int       `json:"count,omitempty"`
}

// A Question asks for a path.
type Question struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Prove bool   `json:"prove"` // send a probe into the cluster
}

// An Answer is one line of the answer to a Question. The last one with a Path counts.
type Answer struct {
	Path *path.Path `json:"path,omitempty"`
	// Policies are the decisions of policies between two pods.
	Policies []networkpolicy.Explanation `json:"policies,omitempty"`
	// Seen is a node's observation of the probe, as it arrives.
	Seen   *Seen  `json:"seen,omitempty"`
	Error  string `json:"error,omitempty"`
	Advice string `json:"advice,omitempty"`
}

// Seen is one observation of a probe.
type Seen struct {
	Node string `json:"node"`
	Text string `json:"text"`
}

// Traffic has the connections through each node, now.
type Traffic struct {
	Nodes int    `json:"nodes"` // that answered, of Of
	Of    int    `json:"of"`
	Edges []Edge `json:"edges"`           // the largest first
	More  int    `json:"more,omitempty"`  // edges that are left out
	Notes []Note `json:"notes,omitempty"` // missing figures
	Error string `json:"error,omitempty"`
	// Advice is the remedy of Error.
	Advice string `json:"advice,omitempty"`
}

// A Note says what is missing, and the remedy.
type Note struct {
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"`
}

// An Edge has the connections that one node translates, to a Service port or to an endpoint. Rates are per second, and nil
// if the node does not count them.
type Edge struct {
	Node        string   `json:"node"`
	To          string   `json:"to"`      // "shop/web:http", or an endpoint's address and port
	Service     string   `json:"service"` // NAMESPACE/NAME
	Pod         string   `json:"pod,omitempty"`
	At          string   `json:"at,omitempty"` // the pod's node
	Connections int      `json:"connections"`
	Unanswered  int      `json:"unanswered,omitempty"`
	New         *float64 `json:"new"`
	Bytes       *float64 `json:"bytes"`
	Refused     float64  `json:"refused,omitempty"` // packets that were rejected or dropped
}

// A Source answers questions about the cluster. Its errors carry advice in [brackets].
type Source interface {
	// View returns nil if there is no such Service. An empty node means any node.
	View(ctx context.Context, name api.Name, node, from string) (*View, error)
	// Ask sends the lines of the answer. Only one goroutine calls send.
	Ask(ctx context.Context, q Question, send func(Answer)) error
	// Traffic sends figures each second until ctx ends: of all Services, or of the endpoints of one. Only one goroutine
	// calls send, which does not wait.
	Traffic(ctx context.Context, service api.Name, send func(Traffic)) error
}
