package kube

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// How a speaker stands to routers and voters is in conditions of its ConfigurationState, of these types: of a session
// with the BGPPeer's name behind it. They are the speaker's word, gone with it (docs/decisions/0047).
const (
	conditionSession = "bgp.fairway.net/"
	conditionGranted = "l2.fairway.net/Granted"
)

// standingOwner is the field manager of the conditions: they are written for themselves.
const standingOwner = "fairway-speaker-standing"

// speakerStatePrefix is what the names of the speakers' ConfigurationStates begin with; the node's follows.
const speakerStatePrefix = "speaker-"

// A speakerState is what a speaker's ConfigurationState says: each half has a writer.
type speakerState struct {
	configState
	owner     string              // UID of the Node with which it goes
	standings []announce.Standing // sorted by peer
}

// convertSpeakerState reads a ConfigurationState. What makes no sense is written anew.
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
		peer, session := strings.CutPrefix(c.Type, conditionSession)
		if ok && (session || c.Type == conditionGranted) {
			one := announce.Standing{Node: node, Up: c.Status == metav1.ConditionTrue, Since: c.LastTransitionTime.UTC(), Reason: c.Message}
			if session {
				one.Peer = peer
			}
			s.standings = append(s.standings, one)
		}
	}
	slices.SortFunc(s.standings, comparePeers)
	return s
}

func comparePeers(a, b announce.Standing) int { return strings.Compare(a.Peer, b.Peer) }

// standingCondition is a standing as a condition.
func standingCondition(s announce.Standing) map[string]any {
	c := map[string]any{"type": conditionSession + s.Peer, "status": "False", "reason": "Down", "message": s.Reason, "lastTransitionTime": s.Since.Format(time.RFC3339)}
	if s.Peer == "" {
		c["type"], c["reason"] = conditionGranted, "NoMajority"
	}
	switch {
	case s.Up && s.Peer == "":
		c["status"], c["reason"] = "True", "Majority"
	case s.Up:
		c["status"], c["reason"] = "True", "Established"
	}
	return c
}

// SpeakerStandings write how this node's speaker stands to routers and voters. Its methods may be called by any goroutine, and
// do not wait.
type SpeakerStandings struct {
	name   api.Name
	writer *StatusWriter[[]announce.Standing]
	node   string
	events *Recorder

	mu       sync.Mutex
	sessions []announce.Standing // sorted by peer
	granted  []announce.Standing // one, or none yet
}

// Standings returns what writes them. Of a session that is lost, or back, the Node has an event.
func (b *BGP) Standings(events *Recorder) *SpeakerStandings {
	s := b.speaker.store
	w := &SpeakerStandings{name: b.name, node: s.cfg.NodeName, events: events}
	w.writer = NewStatusWriter(StatusConfig[[]announce.Standing]{Log: s.cfg.Log, Owner: standingOwner, Kind: "configurationstates", Apply: s.applyStandings,
		Have: func(name api.Name) ([]announce.Standing, bool) {
			c, ok := b.states.Get(name)
			return deref(c, speakerState{}).standings, ok
		},
		// It is the other half's object: what is removed at the end are the conditions.
		Delete: s.forgetStandings,
		Names:  b.states.Names,
	})
	b.states.follow(func(name api.Name, _, _ *speakerState, _ int64) { w.writer.Changed(name) })
	b.states.onSettle(func() { w.writer.Changed(w.name) })
	return w
}

func (s *Store) applyStandings(ctx context.Context, name api.Name, all []announce.Standing, how metav1.ApplyOptions) error {
	conditions := []any{}
	for _, one := range all {
		conditions = append(conditions, standingCondition(one))
	}
	return s.applyMetallb(ctx, "configurationstates", "ConfigurationState", name, how, nil, map[string]any{"conditions": conditions})
}

// forgetStandings removes a speaker's word.
func (s *Store) forgetStandings(ctx context.Context, name api.Name) error {
	return notGone(s.applyStandings(ctx, name, nil, metav1.ApplyOptions{FieldManager: standingOwner, Force: true}))
}

// stateOfSpeaker is the ConfigurationState of a node's speaker.
func (s *Store) stateOfSpeaker(node string) api.Name {
	return api.Name{Namespace: s.cfg.LoadBalancerNamespace, Name: speakerStatePrefix + node}
}

// Run writes until ctx ends, and removes the conditions then.
func (w *SpeakerStandings) Run(ctx context.Context) error { return w.writer.Run(ctx) }

// SetGranted says whether the voters grant.
func (w *SpeakerStandings) SetGranted(s announce.Standing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.granted = []announce.Standing{s}
	w.set()
}

// SetSessions says how all sessions are, sorted by peer.
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

// set lets all of it be written, as the API server keeps it. w.mu is held.
func (w *SpeakerStandings) set() {
	all := slices.Concat(w.granted, w.sessions)
	for i := range all {
		all[i].Since, all[i].Reason = all[i].Since.UTC().Truncate(time.Second), api.Cut(all[i].Reason, 1000)
	}
	w.writer.Set(w.name, all)
}
