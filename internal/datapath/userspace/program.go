package userspace

import (
	_ "embed"
	"fmt"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

//go:embed ruleset.nft.tmpl
var rulesetText string

// tableName is the table's name: table inet fairway-userspace.
const tableName = numbers.TableUserspace

// A scope is the place of a client. Only the kernel sees the incoming interface of a packet, so each scope has its own
// listener.
type scope int

const (
	fromPod      scope = iota // counts as a pod
	fromNode                  // the node itself
	fromExternal              // any other client
	scopes
)

// String returns the name of the scope in the names of chains.
func (s scope) String() string { return [...]string{"pod", "node", "external"}[s] }

// family has the differences between the families in the program.
type family struct{ N, Addr, IP, Loopback string }

// newProgram returns the ruleset for a mark and the listeners' ports.
func newProgram(mark uint32, first uint16) *nft.Ruleset {
	type listener struct {
		Name string
		Port uint16
	}
	var listeners []listener
	for s := range scopes {
		listeners = append(listeners, listener{s.String(), first + uint16(s)})
	}
	return &nft.Ruleset{Source: rulesetText, Data: map[string]any{
		"Mark": fmt.Sprintf("%#x", mark), "Scopes": listeners, "DropInvalid": !nftset.Liberal(),
		"Families": []family{
			{"4", "ipv4_addr", "ip", "127.0.0.0/8"},
			{"6", "ipv6_addr", "ip6", "::1"},
		},
		"From": []struct{ Name string }{{"pod"}, {"output"}, {"external"}},
	}}
}
