// The search of the documentation, opened from the disk. A browser starts no worker for a file:// page, so
// the worker's script runs in a hidden frame instead: what the page posts becomes an event there, and what
// the script posts becomes an event of this object. The theme looks for the name IFrameWorker.
"use strict";
if (location.protocol === "file:") {
    class IFrameWorker extends EventTarget {
        constructor(address) {
            super();
            const frame = document.createElement("iframe");
            frame.hidden = true;
            this.waiting = []; // What is posted before the script runs.
            const append = () => this.open(frame, String(address));
            if (document.body) append();
            else addEventListener("DOMContentLoaded", append, {once: true});
        }

        open(frame, address) {
            document.body.append(frame);
            this.scope = frame.contentWindow;
            this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
            const script = this.scope.document.createElement("script");
            script.src = address;
            script.addEventListener("load", () => {
                const waiting = this.waiting;
                this.waiting = null;
                waiting.forEach((data) => this.postMessage(data));
            });
            this.scope.document.body.append(script);
        }

        postMessage(data) {
            if (this.waiting) this.waiting.push(data);
            else this.scope.dispatchEvent(new this.scope.MessageEvent("message", {data}));
        }
    }
    window.IFrameWorker = window.Worker = IFrameWorker;
}
