package loadbalancer

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// The types of the conditions in a ConfigurationState. They show the speaker's sessions with routers, its grant from the
// voters, and the addresses that it refuses to announce. The BGPPeer's name follows conditionSession, and the address
// follows conditionRefused, with dashes for colons. The conditions disappear with the speaker (docs/decisions/0047).
const (
	conditionSession = "bgp.fairway.net/"
	conditionRefused = "l2.fairway.net/"
	conditionGranted = conditionRefused + "Granted"
)

// standingOwner is the field manager of the conditions, which are written separately.
const standingOwner = "fairway-speaker-standing"

// speakerStatePrefix begins the names of the speakers' ConfigurationStates. The node's name follows.
const speakerStatePrefix = "speaker-"

// A speakerState is the content of a speaker's ConfigurationState. configState and standings have different writers.
type speakerState struct {
	configState
	owner     string              // UID of the owner, a Node
	standings []announce.Standing // sorted by peer and address
}

// convertSpeakerState reads a ConfigurationState. Invalid parts are overwritten later.
func convertSpeakerState(o *unstructured.Unstructured) *speakerState {
	s := &speakerState{configState: *convertConfigState(o)}
	for _, r := range o.GetOwnerReferences() {
		s.owner = string(r.UID)
	}
	var status struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	m, _, err := unstructured.NestedMap(o.Object, "status")
	if err != nil || runtime.DefaultUnstructuredConverter.FromUnstructured(m, &status) != nil {
		return s
	}
	node, ok := strings.CutPrefix(o.GetName(), speakerStatePrefix)
	for _, c := range status.Conditions {
		one, valid := standingOf(c)
		if one.Node = node; ok && valid {
			s.standings = append(s.standings, one)
		}
	}
	slices.SortFunc(s.standings, announce.CompareStandings)
	return s
}

func comparePeers(a, b announce.Standing) int { return strings.Compare(a.Peer, b.Peer) }

// standingOf converts a condition to a standing without a node. It returns false for other programs' conditions.
func standingOf(c metav1.Condition) (s announce.Standing, ok bool) {
	s = announce.Standing{Up: c.Status == metav1.ConditionTrue, Since: c.LastTransitionTime.UTC(), Reason: c.Message}
	if c.Type == conditionGranted {
		return s, true
	}
	if s.Peer, ok = strings.CutPrefix(c.Type, conditionSession); ok {
		return s, true
	}
	s.Peer = ""
	text, ok := strings.CutPrefix(c.Type, conditionRefused)
	if !ok {
		return s, false
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	s.Addr = a
	return s, err == nil
}

// standingCondition converts a standing to a condition.
func standingCondition(s announce.Standing) map[string]any {
	c := map[string]any{"status": "False", "message": s.Reason, "lastTransitionTime": s.Since.Format(time.RFC3339)}
	up := ""
	switch {
	case s.Peer != "":
		c["type"], c["reason"], up = conditionSession+s.Peer, "Down", "Established"
	case s.Addr.IsValid():
		c["type"], c["reason"] = conditionRefused+strings.ReplaceAll(s.Addr.StringExpanded(), ":", "-"), "Refused"
	default:
		c["type"], c["reason"], up = conditionGranted, "NoMajority", "Majority"
	}
	if s.Up {
		c["status"], c["reason"] = "True", up
	}
	return c
}

// SpeakerStandings writes this node's sessions with routers, its grant from the voters and its refusals. Its methods may be called by
// any goroutine, and do not wait.
type SpeakerStandings struct {
	name   api.Name
	writer *kube.StatusWriter[[]announce.Standing]
	node   string
	events *kube.Recorder

	mu       sync.Mutex
	sessions []announce.Standing // sorted by peer
	granted  []announce.Standing // one standing; empty: not known yet
	refused  []announce.Standing // sorted by address
}

// Standings returns the writer of the conditions. It also sends an event about the Node when a session is lost or comes
// back.
func (b *BGP) Standings(events *kube.Recorder) *SpeakerStandings {
	s := b.speaker.store
	w := &SpeakerStandings{name: b.name, node: s.Config().NodeName, events: events}
	w.writer = kube.NewStatusWriter(kube.StatusConfig[[]announce.Standing]{Log: s.Config().Log, Owner: standingOwner, Kind: "configurationstates",
		Apply: func(ctx context.Context, name api.Name, all []announce.Standing, how metav1.ApplyOptions) error {
			return applyStandings(ctx, s, name, all, how)
		},
		Have: func(name api.Name) ([]announce.Standing, bool) {
			c, ok := b.states.Get(name)
			return ptr.Deref(c, speakerState{}).standings, ok
		},
		// Only the conditions are removed at the end: configState has another writer.
		Delete: func(ctx context.Context, name api.Name) error { return forgetStandings(ctx, s, name) },
		Names:  b.states.Names,
	})
	b.states.Follow(func(name api.Name, _, _ *speakerState, _ int64) { w.writer.Changed(name) })
	b.states.OnSettle(func() { w.writer.Changed(w.name) })
	return w
}

func applyStandings(ctx context.Context, s *kube.Store, name api.Name, all []announce.Standing, how metav1.ApplyOptions) error {
	conditions := []any{}
	for _, one := range all {
		conditions = append(conditions, standingCondition(one))
	}
	return applyMetallb(ctx, s, "configurationstates", "ConfigurationState", name, how, nil, map[string]any{"conditions": conditions})
}

// forgetStandings removes a speaker's conditions.
func forgetStandings(ctx context.Context, s *kube.Store, name api.Name) error {
	return kube.NotGone(applyStandings(ctx, s, name, nil, metav1.ApplyOptions{FieldManager: standingOwner, Force: true}))
}

// stateOfSpeaker returns the name of a speaker's ConfigurationState.
func stateOfSpeaker(s *kube.Store, node string) api.Name {
	return api.Name{Namespace: s.Config().LoadBalancerNamespace, Name: speakerStatePrefix + node}
}

// Run writes until ctx ends, and removes the conditions then.
func (w *SpeakerStandings) Run(ctx context.Context) error { return w.writer.Run(ctx) }

// SetGranted sets the voters' decision.
func (w *SpeakerStandings) SetGranted(s announce.Standing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.granted = []announce.Standing{s}
	w.set()
}

// SetRefused replaces the refusals, sorted by address.
func (w *SpeakerStandings) SetRefused(all []announce.Standing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = slices.Clone(all)
	w.set()
}

// SetSessions replaces the states of all sessions, sorted by peer.
func (w *SpeakerStandings) SetSessions(all []announce.Standing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, now := range all {
		i, known := slices.BinarySearchFunc(w.sessions, now, comparePeers)
		if !known || w.sessions[i].Up == now.Up {
			continue
		}
		with := "BGPPeer " + now.Peer
		if node, ok := announce.PeerNode(now.Peer); ok {
			with = "route reflector " + node
		}
		if text := "the session with " + with + " is "; now.Up {
			w.events.NodeInform(w.node, "BGPSessionUp", text+"up")
		} else {
			w.events.NodeEvent(w.node, "BGPSessionDown", text+"down: "+now.Reason)
		}
	}
	w.sessions = slices.Clone(all)
	w.set()
}

// set queues sessions, grant and refusals in the form that the API server stores. w.mu is held.
func (w *SpeakerStandings) set() {
	all := slices.Concat(w.granted, w.refused, w.sessions)
	for i := range all {
		all[i].Since, all[i].Reason = all[i].Since.UTC().Truncate(time.Second), api.Cut(all[i].Reason, 1000)
	}
	w.writer.Set(w.name, all)
}
