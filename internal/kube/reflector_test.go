package kube

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestSilentWatch: a watch ends even if neither the server nor the connection ends it, so that the reflector asks again.
func TestSilentWatch(t *testing.T) {
	ended := func(what string, w watch.Interface) {
		t.Helper()
		select {
		case _, open := <-w.ResultChan():
			if open {
				t.Errorf("%s: an event came", what)
			}
		case <-time.After(deadline):
			t.Errorf("%s: the watch does not end", what)
		}
	}
	var asked context.Context
	silent := func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
		asked = ctx
		return watch.NewRaceFreeFake(), nil
	}
	w, _, err := watchWithin(t.Context(), time.Millisecond, metav1.ListOptions{TimeoutSeconds: new(int64)}, silent)
	if err != nil {
		t.Fatal(err)
	}
	ended("its time is over", w)
	w, end, err := watchWithin(t.Context(), time.Hour, metav1.ListOptions{TimeoutSeconds: new(int64)}, silent)
	if err != nil {
		t.Fatal(err)
	}
	end()
	ended("it is stopped", w)
	if asked.Err() == nil {
		t.Error("the request goes on")
	}
	fault := errors.New("refused")
	if _, _, err := watchWithin(t.Context(), time.Hour, metav1.ListOptions{}, func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, fault }); !errors.Is(err, fault) {
		t.Error(err)
	}
}
