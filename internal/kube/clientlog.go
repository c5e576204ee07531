package kube

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
)

// quietly returns a logger for client-go, which logs through the context. Messages for which demote returns true become
// debug messages.
func quietly(log *slog.Logger, demote func(message string) bool) logr.Logger {
	return logr.FromSlogHandler(quietHandler{log.Handler(), demote})
}

type quietHandler struct {
	slog.Handler
	demote func(message string) bool
}

// Handle is a part of slog.Handler.
func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.demote(r.Message) {
		r.Level = slog.LevelDebug
		if !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs is a part of slog.Handler.
func (h quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{h.Handler.WithAttrs(attrs), h.demote}
}

// WithGroup is a part of slog.Handler.
func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.Handler.WithGroup(name), h.demote}
}
