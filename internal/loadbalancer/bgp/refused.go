package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	gobgp "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// A connectErrors handles GoBGP's log. It takes the reasons why there is no session yet, and the size of received routes.
// It drops all other records, because GoBGP reports other changes as states.
type connectErrors struct{ s *session }

func (connectErrors) Enabled(_ context.Context, l slog.Level) bool { return l <= slog.LevelInfo }
func (h connectErrors) WithAttrs([]slog.Attr) slog.Handler         { return h }
func (h connectErrors) WithGroup(string) slog.Handler              { return h }
func (h connectErrors) Handle(_ context.Context, r slog.Record) error {
	attrs := attributes(r)
	switch r.Message {
	case updateRecord:
		h.s.ledger.received(h.s, attrs)
	case "failed to connect":
		h.s.connectFailed("the router cannot be reached", unreachableReason(h.s.config, api.Cut(attrs["Error"].String(), 300)))
	case "outgoing connection IO error": // before the router's OPEN
		h.s.connectFailed("the router refuses the session", earlyEndReason(h.s.config))
	case "sent notification":
		if reason := openErrorReason(h.s.config, attrs["Code"], attrs["Subcode"]); reason != "" {
			h.s.connectFailed("the session is refused", reason)
		}
	}
	return nil
}

// unreachableReason adds the likely cause to the error of a connection.
func unreachableReason(c announce.SessionConfig, reason string) string {
	switch {
	case strings.HasSuffix(reason, unix.EHOSTUNREACH.Error()) && !c.MultiHop && !c.Internal():
		return reason + " [is peerAddress right? A router that is more than one hop away needs ebgpMultiHop]"
	case c.Password != "":
		return reason + " [a wrong password looks like a router that does not answer]"
	}
	return reason
}

// refusalReason returns why a session ended before it was up; empty: it did not, or connectErrors knows the reason.
func refusalReason(c announce.SessionConfig, state apiutil.PeerState) string {
	switch state.DisconnectReason {
	case gobgp.PeerState_DISCONNECT_REASON_INVALID_MSG, // GoBGP expects no notification in this state and drops its text
		gobgp.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED, gobgp.PeerState_DISCONNECT_REASON_READ_FAILED:
		return earlyEndReason(c)
	}
	return ""
}

// earlyEndReason is the reason if a router ends a connection before there is a session.
func earlyEndReason(c announce.SessionConfig) string {
	return fmt.Sprintf("the router ends the connection before there is a session [does it have this node as its neighbour, in AS %d?]", c.LocalASN)
}

// openErrorReason returns the reason in this node's own notification about the router's OPEN message; empty: it is
// about something else.
func openErrorReason(c announce.SessionConfig, code, subcode slog.Value) string {
	if code.Kind() != slog.KindInt64 || subcode.Kind() != slog.KindInt64 {
		return ""
	}
	switch major, minor := uint8(code.Int64()), uint8(subcode.Int64()); {
	case major == wire.BGP_ERROR_FSM_ERROR: // the router has sent a notification instead of an OPEN
		return earlyEndReason(c)
	case major != wire.BGP_ERROR_OPEN_MESSAGE_ERROR:
		return ""
	case minor == wire.BGP_ERROR_SUB_BAD_PEER_AS:
		return fmt.Sprintf("the router is not in AS %d [set peerASN or dynamicASN to the router's AS]", c.PeerASN)
	default:
		return wire.NewNotificationErrorCode(major, minor).String()
	}
}
