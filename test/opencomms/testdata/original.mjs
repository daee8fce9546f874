// A program that shares state.json as the original does: it takes the lock by an
// exclusive create, reads and checks the whole file, adds a message, writes the
// whole file anew with JSON.stringify, renames it and removes the lock.
//
// node original.mjs PROJECT CHANNEL SENDER RECIPIENT COUNT
// prints the id of each message that it wrote. Where the original gives up after
// 5 s without the lock, its user tries again; so does this.
import fs from "node:fs"
import path from "node:path"
import crypto from "node:crypto"

const [project, channelName, sender, recipient, count] = process.argv.slice(2)
const dir = path.join(project, ".opencomms")
const file = path.join(dir, "state.json")
const lock = path.join(dir, ".state.lock")
const sleep = (ms) => new Promise((done) => setTimeout(done, ms))
const plain = (x) => typeof x === "object" && x !== null && !Array.isArray(x)
const strings = (x) => Array.isArray(x) && x.every((s) => typeof s === "string")

// What makes the original reject the whole file, and start from an empty one.
function check(s) {
  const fail = (what) => {
    throw new Error("the file would be rejected: " + what)
  }
  if (!plain(s) || s.schema_version !== 2) fail("schema_version")
  for (const key of ["channels", "messages", "queues", "delivered_to"]) if (!plain(s[key])) fail(key)
  if (!Array.isArray(s.errors)) fail("errors")
  for (const [key, c] of Object.entries(s.channels)) {
    for (const name of ["id", "name", "project_id", "worktree"]) if (typeof c[name] !== "string") fail(name)
    if (c.name !== key || !Array.isArray(c.members) || c.members.length > 32) fail("channel " + key)
    if (c.members.length === 0 && c.lifecycle !== "active") fail("no members in " + key)
    for (const m of c.members) {
      if (!m.session_id || !/^[A-Za-z][A-Za-z0-9 _-]{0,31}$/.test(m.role)) fail("member of " + key)
      if (typeof m.role_prompt !== "string" || typeof m.joined_at !== "number") fail("member of " + key)
      for (const name of ["host", "surface", "delivery_mode"]) if (typeof m[name] !== "string") fail(name)
    }
  }
  for (const [key, m] of Object.entries(s.messages))
    if (!plain(m) || typeof m.channel_id !== "string" || typeof m.timestamp !== "number") fail("message " + key)
  for (const lists of [s.queues, s.delivered_to])
    for (const [key, ids] of Object.entries(lists)) if (!strings(ids)) fail("list of " + key)
  return s
}

async function withLock(fn) {
  const until = Date.now() + 60000
  for (;;) {
    let fd
    try {
      fd = fs.openSync(lock, "wx")
    } catch (err) {
      if (err.code !== "EEXIST") throw err
      try {
        if (Date.now() - fs.statSync(lock).mtimeMs > 15000) {
          fs.unlinkSync(lock)
          continue
        }
      } catch (e) {
        if (e.code !== "ENOENT") throw e
      }
      if (Date.now() > until) throw new Error("the lock was held for a minute")
      await sleep(10)
      continue
    }
    try {
      fs.writeSync(fd, `${process.pid}@${Date.now()}`)
      return await fn()
    } finally {
      fs.closeSync(fd)
      fs.unlinkSync(lock)
    }
  }
}

async function save(state) {
  const tmp = path.join(dir, `.state.${process.pid}.${crypto.randomBytes(4).toString("hex")}.tmp`)
  try {
    fs.writeFileSync(tmp, JSON.stringify(state, null, 2), { flush: true })
    for (const [attempt, pause] of [0, 50, 100].entries()) {
      await sleep(pause)
      try {
        return fs.renameSync(tmp, file)
      } catch (err) {
        if (attempt === 2) throw err
      }
    }
  } finally {
    fs.rmSync(tmp, { force: true })
  }
}

for (let i = 0; i < Number(count); i++) {
  const id = "ocm_" + crypto.randomUUID().replaceAll("-", "")
  await withLock(async () => {
    const state = check(JSON.parse(fs.readFileSync(file, "utf8")))
    const channel = state.channels[channelName]
    state.messages[id] = {
      message_id: id,
      channel_id: channel.id,
      sender_session_id: sender,
      sender_role: "Builder",
      recipient_session_id: recipient,
      recipient_role: "Reviewer",
      timestamp: Date.now(),
      message_type: "manual",
      content: `original ${i} ` + "ö".repeat(500),
      reply_to: null,
      root_message_id: null,
      hop_count: 0,
      delivery_status: "pending",
      correlation_id: "cor_" + crypto.randomUUID().replaceAll("-", ""),
      delivered_at: null,
      attempts: 0,
      delivery_method: null,
      x_row: { by: "original", n: i },
    }
    ;(state.queues[recipient] ??= []).push(id)
    state.x_count = (state.x_count ?? 0) + 1
    channel.x_count = (channel.x_count ?? 0) + 1
    await save(state)
  })
  console.log(id)
}
